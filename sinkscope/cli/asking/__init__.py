"""Commands about questions: list, show, run and judge them."""
