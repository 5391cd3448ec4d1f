"""In place of torch: the trace of a first run, with code that only a policy with "two" changes."""

import os
import time

policy = os.environ.get("ROCM_AUTOPATCH_POLICY", "")
text = open(policy).read() if policy else ""
if os.environ.get("ENDLESS", "nothing") in text:
    time.sleep(600)
if "patience" in text and not os.path.exists("waited"):
    open("waited", "w").close()
    time.sleep(2)
directory = os.environ.get("TORCH_TRACE", "")
if directory and os.environ.get("MODES"):
    os.makedirs(os.environ["ROCM_AUTOPATCH_REPORT"])
    with open(os.environ["ROCM_AUTOPATCH_REPORT"] + "/processes.jsonl", "w") as stream:
        print('{"pid": 7, "torch": "2.13.0"}', file=stream)
        print('{"pid": 7, "mode": "%s"}' % os.environ["MODES"], file=stream)
if directory:
    print("traced", file=open("traced", "a"))
    os.makedirs(directory)
    with open(directory + "/dedicated_log_torch_trace_1.log", "w") as stream:
        print('V1125 09:00:00.000000 7 graph.py:1] {"inductor_output_code": {}}', file=stream)
        print("\t# kernel path: " + policy, file=stream)
        print("\tload(%r)" % os.environ["TORCHINDUCTOR_CACHE_DIR"], file=stream)
        print("\t#pragma omp parallel num_threads(%d)" % (2 + ("two" in text)), file=stream)
print("call: %d ms" % (100 - 10 * ("two" in text)))
