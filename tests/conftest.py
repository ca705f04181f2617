"""What holds for every test: one thread per process, seeds that are printed and can be given, no
per-test kernels.

`LMPROG_SEED=7 make test` runs everything that draws with another seed; `LMPROG_EXAMPLES=5000` tries
so many examples of every property. Compiled kernels stay in the user's cache folder, so that they
are built once and not by every test.
"""

from __future__ import annotations

import gc
import os
import signal
import sys
from collections.abc import Generator

# Before torch is imported anywhere: processes run side by side, and more threads than cores only
# disturb them.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("MKL_NUM_THREADS", "1")
# A container often forbids Python to keep what it compiles: each process that a test starts would
# compile the whole package, and each run all tests. Kept beside the sources, where Python also finds
# what pip compiled: in a folder of its own, a first run would compile torch again in each process.
if "PYTHONPYCACHEPREFIX" not in os.environ:
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    sys.dont_write_bytecode = False
# A shell without job control has what it starts in the background ignore Ctrl-C, and so would the
# processes that tests interrupt.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
# Nothing here may reach the network.
os.environ.setdefault("HF_HUB_OFFLINE", "1")
# And so nothing needs to trust anyone: each client of a service would read all certificates of the
# system, for 30 ms. This folder has none.
os.environ.pop("SSL_CERT_FILE", None)
os.environ["SSL_CERT_DIR"] = os.path.dirname(__file__)

import hypothesis
import pytest

SEED = int(os.environ.get("LMPROG_SEED", "20261121"))

hypothesis.settings.register_profile("lmprog", deadline=None, print_blob=True)
hypothesis.settings.load_profile("lmprog")
EXAMPLES = int(os.environ.get("LMPROG_EXAMPLES", "0"))
"""Examples of each property that hypothesis tries; 0: as many as the test says (`make fuzz`)."""


def pytest_report_header() -> str:
    return f"lmprog: LMPROG_SEED={SEED} OMP_NUM_THREADS={os.environ['OMP_NUM_THREADS']}"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if not EXAMPLES:
        return
    for item in items:
        test = getattr(item, "obj", None)
        if hypothesis.is_hypothesis_test(test):
            given = getattr(test, "_hypothesis_internal_use_settings", None)
            more = hypothesis.settings(given, max_examples=EXAMPLES)
            vars(test)["_hypothesis_internal_use_settings"] = more


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Ten thousand tests are millions of objects, which live as long as the process. If garbage
    collection looked at them, each full one would take more than a second.
    """
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


@pytest.fixture
def frozen_heap() -> None:
    """For a test whose time counts: garbage collection looks at nothing that was there before."""
    gc.collect()
    gc.freeze()


def pytest_runtest_teardown() -> None:
    """An engine with more threads changes torch's for the whole process: the tests after it would
    share the machine with threads that wait by spinning.
    """
    torch = sys.modules.get("torch")
    if torch is not None and torch.get_num_threads() != 1:
        torch.set_num_threads(1)


@pytest.fixture
def seed(request: pytest.FixtureRequest) -> int:
    """For a test that draws; shown with its failure."""
    print(f"LMPROG_SEED={SEED} ({request.node.nodeid})")
    return SEED
