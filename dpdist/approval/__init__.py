"""For the custodian: gates on errors that decide under noise, and releases that wait for approval; `release` calls both."""
