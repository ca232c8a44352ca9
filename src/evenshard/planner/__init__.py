"""From a request in an engineer's words to a placement that says what it is worth.

::

    request         what is asked: tables, devices, memory, optimizer, rules by table name (rules_file: as YAML)
    model           which model answers
    place           the answer: search, column splits (splits), comparison (rivals), measuring; refusals (room)
    answer, file    what an answer knows; placement.json and its JSON schema
    summary         for the terminal (terminal: how); page: as one HTML page (page_charts, page.html.j2); highlights:
                    what both say first
    explain         what each device would cost with a table on it (explanation: its records; explain_text)
    diff            what moves between two answers, and what that saves (judged: by one model; diff_text)
"""
