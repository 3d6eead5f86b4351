"""Questions and rollouts as files: schemas, tables, checks, streams, sorting, writing, replies of servers."""
