"""Evidence: what ``rocm-autopatch prove`` tried on a machine, and which policies may ask for.

``machine`` says what evidence is bound to, ``file`` reads and writes it, ``match`` finds what
counts in this place. docs/evidence.md has it for users.
"""

# What can be proven, by the name that evidence files and policies give it. Made by "make docs" from
# switches.py: a start that reads a policy needs these names, and no start loads the registry.
SUBJECTS: "dict[str, str]" = {
    "default": "The mode default works under the policy safe.",
    "graphs": "The mode reduce-overhead works with our own graphs.",
    "training-graphs": "Training in the mode reduce-overhead works with our own graphs.",
    "cudagraphs": "The mode reduce-overhead works with Inductor's own capture.",
    "autotune": "The mode max-autotune-no-cudagraphs works, with GEMMs in libraries only.",
    "autotune-graphs": "The same search works with our own graphs.",
    "max-autotune": "The mode max-autotune works as in torch itself, with Inductor's own capture.",
    "gemm-templates": "A search among all GEMM backends works, without a capture.",
    "coordinate_descent_tuning": "A search by coordinate descent works.",
    "aggressive_fusion": "Compiles with more fusion work.",
    "max_fusion_size": "Compiles with another limit of max_fusion_size work.",
    "benchmark_kernel": "Compiles that add a benchmark to each kernel work.",
    "multi_kernel": "Compiles that choose among several kernels at run time work.",
    "freezing": "Compiles with weights as constants work.",
    "memory_planning": "Compiles that plan their memory work.",
    "max_autotune_pointwise": "A search among pointwise and reduction kernels works.",
    "expandable_segments": "The allocator works with expandable segments.",
}
