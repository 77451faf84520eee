"""A second pack on the tests' server. It runs before ComfyUI's own imports, and notes what loading the V-GRPO pack costs."""

import sys
import threading
import time
from importlib.machinery import SourceFileLoader

HEAVY = ("diffusers", "peft", "transformers", "accelerate", "matplotlib", "scipy", "torchvision")
PACK = "V-GRPO"  # in the name of its folder, and in no other


class _Recorder:
    """Finds nothing; sees each module's first import, and whether a file of the pack stands on the stack."""

    def __init__(self):
        self.caused = {}
        self.cpu_s = 0.0  # of importing the pack's modules, with all that they import
        self._depth = 0

    def find_spec(self, name, path=None, target=None):
        if name in HEAVY and threading.current_thread() is threading.main_thread():
            frame = sys._getframe()
            while frame is not None:
                if PACK in frame.f_code.co_filename:
                    self.caused[name] = frame.f_code.co_filename
                    break
                frame = frame.f_back
        return None

    def time_imports(self):
        plain = SourceFileLoader.exec_module

        def timed(loader, module):
            if PACK not in loader.path or threading.current_thread() is not threading.main_thread():
                return plain(loader, module)
            begin = time.thread_time()
            self._depth += 1
            try:
                return plain(loader, module)
            finally:
                self._depth -= 1
                if not self._depth:
                    self.cpu_s += time.thread_time() - begin

        SourceFileLoader.exec_module = timed


_recorder = _Recorder()
_recorder.time_imports()
sys.meta_path.insert(0, _recorder)
sys.modules["vgrpo_test_recorder"] = _recorder  # where __init__.py, a module of its own, finds it
