// nvcc -ptx -arch=sm_80 -o kernels_sm80.ptx kernels.cu (CUDA 13.0)
#include <cuda_fp16.h>
#include <mma.h>

extern "C" __global__ void __launch_bounds__(256) saxpy(float a, const float *x, float *y, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) y[i] = a * x[i] + y[i];
}

template <int N> __global__ void nested_loops(const double *x, double *y, int n) {
  __shared__ double tile[N];
  double sum = 0;
  for (int i = threadIdx.x; i < n; i += N) {
    tile[threadIdx.x] = x[i];
    __syncthreads();
#pragma unroll 1
    for (int j = 0; j < N; j++) sum += tile[j];
    __syncthreads();
  }
  atomicAdd(y, sum);
}
template __global__ void nested_loops<32>(const double *, double *, int);

__device__ __noinline__ float helper(float x) { return __sinf(x) * 2.f; }

// Not visible outside this file, and with an array that no register can hold.
static __global__ void local_array(const float *x, float *y) {
  float values[16];
  for (int i = 0; i < 16; i++) values[i] = helper(x[i]);
  y[threadIdx.x] = values[(int)x[0] & 15];
}
void launch(float *x, float *y) { local_array<<<1, 32>>>(x, y); }

using namespace nvcuda;
__global__ void product(const half *a, const half *b, float *c) {
  wmma::fragment<wmma::matrix_a, 16, 16, 16, half, wmma::row_major> left;
  wmma::fragment<wmma::matrix_b, 16, 16, 16, half, wmma::col_major> right;
  wmma::fragment<wmma::accumulator, 16, 16, 16, float> sum;
  wmma::fill_fragment(sum, 0.f);
  wmma::load_matrix_sync(left, a, 16);
  wmma::load_matrix_sync(right, b, 16);
  wmma::mma_sync(sum, left, right, sum);
  wmma::store_matrix_sync(c, sum, 16, wmma::mem_row_major);
}

// More values than registers.
extern "C" __global__ void __launch_bounds__(1024, 2) spills(const float *x, float *y) {
  float v[96];
#pragma unroll
  for (int i = 0; i < 96; i++) v[i] = x[i * 1024 + threadIdx.x];
#pragma unroll
  for (int i = 0; i < 96; i++)
#pragma unroll
    for (int j = 0; j < 4; j++) v[i] = v[i] * v[(i * 7 + j) % 96] + v[(i * 13 + j) % 96];
  float sum = 0;
#pragma unroll
  for (int i = 0; i < 96; i++) sum += v[i];
  y[threadIdx.x] = sum;
}
