"""Names that several test files use."""

POINTWISE = "TORCHINDUCTOR_MAX_AUTOTUNE_POINTWISE"
GIVEN = "ROCM_AUTOPATCH_GIVEN"
SITE = "ROCM_AUTOPATCH_SITE"
SITE_DIRECTORY = "/etc/rocm-autopatch"
INDUCTOR = "torch._inductor.config"
# Images of SGLang: for an MI300X, for an MI355X, and a newer one for the latter.
MI30X_IMAGE = "rocm/sgl-dev:v0.5.8-rocm700-mi30x-20260129"
MI35X_IMAGE = "rocm/sgl-dev:v0.5.8-rocm700-mi35x-20260210"
NEW_IMAGE = "rocm/sgl-dev:v0.5.8.post1-rocm700-mi35x-20260219"
