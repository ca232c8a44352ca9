"""Turns a request in an engineer's words into a placement, and says what it is worth.

::

    api, options          evenshard.place, whose arguments become flags, keys of requests, served parameters
    request, rules        what is asked: tables, devices, memory, optimizer, rules by table name
    model                 which model answers; serving, mlflow_model: where MLflow serves one
    place                 the answer: search, prices (pricing), others (rivals, saving), measuring; refusals: capacity
    answer, file          the answer and placement.json with its JSON schema; file_records: what it holds
    memory                what fills devices and hosts, and what tables outside of device memory take
    summary, highlights/  the answer on the terminal; page/: as one HTML page
    explain/              what a step would take with a table elsewhere, sharded otherwise or kept otherwise
    diff/                 what moves between two answers, and what that saves
    describe              what a file of ours is, and where it comes from
    torchrec/             plans for TorchRec, and a planner with its interface
"""
