const int TILE = 16;

__global__ void product(const double* a, const double* b, double* c, int n) {
    __shared__ double left[TILE][TILE], right[TILE][TILE];
    int row = blockIdx.y * TILE + threadIdx.y;
    int column = blockIdx.x * TILE + threadIdx.x;
    double sum = 0;
    for (int tile = 0; tile < n; tile += TILE) {
        left[threadIdx.y][threadIdx.x] = row < n && tile + threadIdx.x < n ? a[row * n + tile + threadIdx.x] : 0;
        right[threadIdx.y][threadIdx.x] = column < n && tile + threadIdx.y < n ? b[(tile + threadIdx.y) * n + column] : 0;
        __syncthreads();
        for (int k = 0; k < TILE; ++k) {
            sum += left[threadIdx.y][k] * right[k][threadIdx.x];
        }
        __syncthreads();
    }
    if (row < n && column < n) c[row * n + column] = sum;
}
