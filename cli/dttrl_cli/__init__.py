"""The ``dttrl`` command line: parse, call the library, print."""
