"""Commands about the paper's questions: list, show, run, queue and judge them."""
