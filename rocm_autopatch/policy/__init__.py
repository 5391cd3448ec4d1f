"""The policy half: YAML in, plan out. It may import anything, and runs in the command line, when
the wheel is built, and in a starting interpreter only where a user's own YAML has to be read."""

from rocm_autopatch.policy.problem import PolicyError, Problem

__all__ = ["PolicyError", "Problem"]
