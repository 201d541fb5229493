"""The program `scope-jax`, also `python -m scope_jax`."""

import signal


def run() -> None:
    """The command line. Ctrl-C while its modules are imported ends the process as it would a program in C, without a
    traceback; then the command line listens itself."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    from scope_jax.cli import run as command_line

    command_line()


if __name__ == "__main__":
    run()
