"""Results: tables of finished work -> numbers with intervals, curves, figures and reports."""
