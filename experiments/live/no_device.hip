// Asks the HIP runtime for its devices: prints the error's number, the count, the error's name and
// the runtime's version.
#include <hip/hip_runtime.h>

#include <cstdio>

int main() {
    int count = -1;
    int version = -1;
    const hipError_t error = hipGetDeviceCount(&count);
    if (hipRuntimeGetVersion(&version) != hipSuccess) return 1;
    std::printf("%d %d %s %d\n", error, count, hipGetErrorName(error), version);
}
