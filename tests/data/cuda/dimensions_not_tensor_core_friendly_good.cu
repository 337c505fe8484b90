#include <mma.h>
using namespace nvcuda;

__global__ void product(const half* a, float* c) {
    __shared__ half tile[16 * 24];
    for (int i = threadIdx.x; i < 16 * 24; i += 32) tile[i] = a[i];
    __syncthreads();
    wmma::fragment<wmma::matrix_a, 16, 16, 16, half, wmma::row_major> left;
    wmma::fragment<wmma::matrix_b, 16, 16, 16, half, wmma::row_major> right;
    wmma::fragment<wmma::accumulator, 16, 16, 16, float> sum;
    wmma::fill_fragment(sum, 0.0f);
    wmma::fill_fragment(right, __float2half(1.0f));
    wmma::load_matrix_sync(left, tile, 24);
    wmma::mma_sync(sum, left, right, sum);
    wmma::store_matrix_sync(c, sum, 16, wmma::mem_row_major);
}
