// The tile is turned around in shared memory, rows are read and written.
__global__ void transpose(const float* __restrict__ in, float* out, int rows, int columns) {
    __shared__ float tile[32][33];
    int x = blockIdx.x * 32 + threadIdx.x;
    int y = blockIdx.y * 32 + threadIdx.y;
    if (x < columns && y < rows) {
        tile[threadIdx.y][threadIdx.x] = in[y * columns + x];
    }
    __syncthreads();
    x = blockIdx.y * 32 + threadIdx.x;
    y = blockIdx.x * 32 + threadIdx.y;
    if (x < rows && y < columns) {
        out[y * rows + x] = tile[threadIdx.x][threadIdx.y];
    }
}
