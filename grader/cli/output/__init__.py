"""What commands print: reports, tables, progress."""
