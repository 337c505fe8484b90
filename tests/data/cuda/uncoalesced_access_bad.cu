// Each thread of a warp writes a row of its own.
__global__ void transpose(const float* __restrict__ in, float* out, int rows, int columns) {
    int x = blockIdx.x * blockDim.x + threadIdx.x;
    int y = blockIdx.y * blockDim.y + threadIdx.y;
    if (x < columns && y < rows) {
        out[x * rows + y] = in[y * columns + x];
    }
}
