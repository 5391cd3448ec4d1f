"""In a thread."""

import threading

thread = threading.Thread(target=__import__, args=("broken",))
thread.start()
thread.join()
