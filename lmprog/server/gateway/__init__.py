"""What every route stands on: the state of one server, who may call it, how errors are answered."""
