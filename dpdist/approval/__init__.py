"""For the custodian: gates that decide under noise, and releases that wait for a decision."""
