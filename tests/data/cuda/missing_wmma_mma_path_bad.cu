#include <cuda_fp16.h>

__global__ void product(const half* a, const half* b, float* c, int n) {
    int row = blockIdx.y * blockDim.y + threadIdx.y;
    int column = blockIdx.x * blockDim.x + threadIdx.x;
    if (row >= n || column >= n) return;
    float sum = 0;
    for (int k = 0; k < n; ++k) sum += __half2float(a[row * n + k]) * __half2float(b[k * n + column]);
    c[row * n + column] = sum;
}
