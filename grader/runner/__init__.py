"""The only code that runs beside a submission. It holds no secret and its word is a claim."""
