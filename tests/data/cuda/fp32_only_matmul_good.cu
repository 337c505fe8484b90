#include <mma.h>
using namespace nvcuda;

__global__ void product(const half* a, const half* b, float* c, int n) {
    wmma::fragment<wmma::matrix_a, 16, 16, 16, half, wmma::row_major> left;
    wmma::fragment<wmma::matrix_b, 16, 16, 16, half, wmma::row_major> right;
    wmma::fragment<wmma::accumulator, 16, 16, 16, float> sum;
    wmma::fill_fragment(sum, 0.0f);
    for (int k = 0; k < n; k += 16) {
        wmma::load_matrix_sync(left, a + blockIdx.y * 16 * n + k, n);
        wmma::load_matrix_sync(right, b + k * n + blockIdx.x * 16, n);
        wmma::mma_sync(sum, left, right, sum);
    }
    wmma::store_matrix_sync(c + blockIdx.y * 16 * n + blockIdx.x * 16, sum, n, wmma::mem_row_major);
}

// No product of matrices: each thread has a row of its own, and all the same vector.
__global__ void vector(const float* matrix, const float* v, float* out, int n) {
    int row = blockIdx.x * blockDim.x + threadIdx.x;
    float sum = 0;
    for (int k = 0; k < n; ++k) sum += matrix[k * n + row] * v[k];
    out[row] = sum;
}
