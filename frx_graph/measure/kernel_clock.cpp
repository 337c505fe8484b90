// Times the kernels of a program that knows nothing of it: preloaded, it stands between the program and the shared CUDA
// runtime, and records an event before and after each launch, in the launch's own stream.
//
// At exit it writes one line, "launches timed milliseconds", to the file that FRX_KERNEL_CLOCK names: how many kernels
// and graphs were launched, of how many the time is known, and their times' sum. Launches into a stream that is being
// captured are none; those of the graph count, as one, when it is launched. An event in a stream waits for what is
// before it, so a time is that of the kernel and of the little that the device needs to get to it.
//
// Not seen: launches by the driver's API, and those of a runtime that is linked statically, as into cuBLAS.

#include <cuda_runtime_api.h>
#include <dlfcn.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <mutex>

namespace {

// So many launches are outstanding at most; then the oldest is waited for, which in practice is long over.
constexpr unsigned kSlots = 4096;

struct Slot {
  cudaEvent_t start = nullptr, stop = nullptr;
  int device = -1;
  bool pending = false;
};

// Never destroyed: threads may launch until the very end.
std::recursive_mutex& mutex() {
  static auto* one = new std::recursive_mutex;
  return *one;
}
Slot slots[kSlots];
unsigned next_slot = 0;
unsigned long long launches = 0, timed = 0;
double milliseconds = 0.0;
pid_t counting = 0;
bool inside = false;

template <typename Function>
Function* real(Function*, const char* name) {
  void* found = dlsym(RTLD_NEXT, name);
  if (!found) {
    std::fprintf(stderr, "frx: the CUDA runtime has no %s\n", name);
    std::abort();
  }
  return reinterpret_cast<Function*>(found);
}
#define REAL(function) real(&function, #function)

void harvest(Slot& slot) {
  if (!slot.pending) return;
  slot.pending = false;
  float took = 0.0f;
  if (REAL(cudaEventSynchronize)(slot.stop) != cudaSuccess) return;
  if (REAL(cudaEventElapsedTime)(&took, slot.start, slot.stop) != cudaSuccess) return;
  milliseconds += took;
  ++timed;
}

void harvest_all() {
  for (unsigned i = 0; i < kSlots; ++i) harvest(slots[(next_slot + i) % kSlots]);
}

void report() {
  std::lock_guard<std::recursive_mutex> lock(mutex());
  const char* path = std::getenv("FRX_KERNEL_CLOCK");
  if (!path || (counting && counting != getpid())) return;  // a fork has the parent's numbers, and no GPU
  inside = true;
  harvest_all();
  if (std::FILE* file = std::fopen(path, "w")) {
    std::fprintf(file, "%llu %llu %.9g\n", launches, timed, milliseconds);
    std::fclose(file);
  }
}

// Registered again once the runtime is up: it must be asked before its own handlers, registered meanwhile, end it.
__attribute__((constructor)) void at_start() { std::atexit(report); }

bool ready(Slot& slot) {
  int device = 0;
  if (REAL(cudaGetDevice)(&device) != cudaSuccess) return false;
  if (slot.device == device) return true;
  if (slot.device >= 0) {
    REAL(cudaEventDestroy)(slot.start);
    REAL(cudaEventDestroy)(slot.stop);
    slot.device = -1;
  }
  if (REAL(cudaEventCreate)(&slot.start) != cudaSuccess) return false;
  if (REAL(cudaEventCreate)(&slot.stop) != cudaSuccess) {
    REAL(cudaEventDestroy)(slot.start);
    return false;
  }
  slot.device = device;
  if (!counting) {
    counting = getpid();
    std::atexit(report);
  }
  return true;
}

template <typename Launch>
cudaError_t clocked(cudaStream_t stream, Launch launch) {
  std::lock_guard<std::recursive_mutex> lock(mutex());
  if (inside) return launch();  // the runtime calls itself
  inside = true;
  cudaError_t result;
  cudaStreamCaptureStatus capture = cudaStreamCaptureStatusNone;
  if (REAL(cudaStreamIsCapturing)(stream, &capture) != cudaSuccess || capture != cudaStreamCaptureStatusNone) {
    result = launch();
  } else {
    Slot& slot = slots[next_slot];
    harvest(slot);
    const bool started = ready(slot) && REAL(cudaEventRecord)(slot.start, stream) == cudaSuccess;
    result = launch();
    if (result == cudaSuccess) {
      ++launches;
      slot.pending = started && REAL(cudaEventRecord)(slot.stop, stream) == cudaSuccess;
      if (slot.pending) next_slot = (next_slot + 1) % kSlots;
    }
  }
  inside = false;
  return result;
}

// Where streams are each thread's own by default (`_ptsz`), no stream means that one.
cudaStream_t own(cudaStream_t stream) { return stream ? stream : cudaStreamPerThread; }
cudaStream_t same(cudaStream_t stream) { return stream; }

}  // namespace

#define DIMENSIONS dim3 grid, dim3 block, void **arguments, size_t shared, cudaStream_t stream
#define CLOCKED_LAUNCH(name, Kernel, which)                                                             \
  extern "C" cudaError_t name(Kernel kernel, DIMENSIONS) {                                              \
    return clocked(which(stream), [&] { return REAL(name)(kernel, grid, block, arguments, shared, stream); }); \
  }
#define CLOCKED_CONFIGURED(name, which)                                                                 \
  extern "C" cudaError_t name(const cudaLaunchConfig_t* config, const void* kernel, void** arguments) { \
    return clocked(which(config->stream), [&] { return REAL(name)(config, kernel, arguments); });       \
  }
#define CLOCKED_GRAPH(name, which)                                                      \
  extern "C" cudaError_t name(cudaGraphExec_t graph, cudaStream_t stream) {             \
    return clocked(which(stream), [&] { return REAL(name)(graph, stream); });           \
  }

CLOCKED_LAUNCH(__cudaLaunchKernel, void*, same)  // what <<<>>> becomes from CUDA 13 on
CLOCKED_LAUNCH(__cudaLaunchKernel_ptsz, void*, own)
CLOCKED_LAUNCH(cudaLaunchKernel, const void*, same)
CLOCKED_LAUNCH(cudaLaunchKernel_ptsz, const void*, own)
CLOCKED_LAUNCH(cudaLaunchCooperativeKernel, const void*, same)
CLOCKED_LAUNCH(cudaLaunchCooperativeKernel_ptsz, const void*, own)
CLOCKED_CONFIGURED(cudaLaunchKernelExC, same)
CLOCKED_CONFIGURED(cudaLaunchKernelExC_ptsz, own)
CLOCKED_GRAPH(cudaGraphLaunch, same)
CLOCKED_GRAPH(cudaGraphLaunch_ptsz, own)

// It takes the events with it.
extern "C" cudaError_t cudaDeviceReset() {
  std::lock_guard<std::recursive_mutex> lock(mutex());
  harvest_all();
  for (Slot& slot : slots) slot.device = -1;
  return REAL(cudaDeviceReset)();
}
