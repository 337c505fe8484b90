// A CUDA runtime without a GPU, for programs that nvcc has linked with the shared one: memory is the host's, kernels do
// nothing, and each takes as many microseconds of a clock of its own as its grid has blocks. Events read that clock.
//
// STUB_CUDA, if set: "capturing" for streams that are always being captured, "no_events" for events that fail.

#include <cstdlib>
#include <cstring>

namespace {
double clock_ms = 0.0;
struct dim3 {
  unsigned x, y, z;
};
struct Configuration {
  dim3 grid, block;
  size_t shared;
  void* stream;
} pushed;
bool mode(const char* word) {
  const char* set = std::getenv("STUB_CUDA");
  return set && !std::strcmp(set, word);
}
int launched(unsigned blocks) {
  clock_ms += blocks / 1e3;
  return 0;
}
}  // namespace

extern "C" {
void** __cudaRegisterFatBinary(void*) {
  static void* handle;
  return &handle;
}
void __cudaRegisterFatBinaryEnd(void**) {}
void __cudaUnregisterFatBinary(void**) {}
void __cudaRegisterFunction(void**, const char*, char*, const char*, int, void*, void*, void*, void*, int*) {}
char __cudaInitModule(void**) { return 0; }
int __cudaGetKernel(void** kernel, const void* function) {
  *kernel = const_cast<void*>(function);
  return 0;
}
unsigned __cudaPushCallConfiguration(dim3 grid, dim3 block, size_t shared, void* stream) {
  pushed = {grid, block, shared, stream};
  return 0;
}
int __cudaPopCallConfiguration(dim3* grid, dim3* block, size_t* shared, void* stream) {
  *grid = pushed.grid;
  *block = pushed.block;
  *shared = pushed.shared;
  *static_cast<void**>(stream) = pushed.stream;
  return 0;
}
int __cudaLaunchKernel(void*, dim3 grid, dim3, void**, size_t, void*) { return launched(grid.x); }
int cudaLaunchKernel(const void*, dim3 grid, dim3, void**, size_t, void*) { return launched(grid.x); }
int cudaLaunchKernelExC(const dim3* configuration, const void*, void**) { return launched(configuration->x); }
int cudaGraphLaunch(void*, void*) { return launched(100); }
int cudaGetDevice(int* device) {
  *device = 0;
  return 0;
}
int cudaEventCreate(double** event) {
  *event = new double(0.0);
  return mode("no_events");
}
int cudaEventDestroy(double* event) {
  delete event;
  return 0;
}
int cudaEventRecord(double* event, void*) {
  *event = clock_ms;
  return 0;
}
int cudaEventSynchronize(double*) { return 0; }
int cudaEventElapsedTime(float* took, const double* start, const double* stop) {
  *took = static_cast<float>(*stop - *start);
  return 0;
}
int cudaStreamIsCapturing(void*, int* status) {
  *status = mode("capturing");
  return 0;
}
int cudaMalloc(void** memory, size_t bytes) { return !(*memory = std::calloc(1, bytes)); }
int cudaFree(void* memory) {
  std::free(memory);
  return 0;
}
int cudaMemcpy(void* to, const void* from, size_t bytes, int) {
  std::memcpy(to, from, bytes);
  return 0;
}
int cudaDeviceSynchronize() { return 0; }
int cudaDeviceReset() { return 0; }
int cudaGetLastError() { return 0; }
const char* cudaGetErrorString(int) { return "no error"; }
}
