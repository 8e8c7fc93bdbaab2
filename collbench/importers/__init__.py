"""Other tools' logs -> the records of a results file. One file per foreign format, each one line in FORMATS.

A log goes one way: `source` (bytes -> numbered lines of text, launcher's prefixes and colours removed) -> a format's
`read` (-> tables) -> `check` (rows that contradict themselves are refused, what the data determine is inferred) ->
`records` (-> run and measurement records).
"""
