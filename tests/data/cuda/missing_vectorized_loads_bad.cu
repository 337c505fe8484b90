__global__ void norms(const float* points, float* out, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    float x = points[4 * i], y = points[4 * i + 1], z = points[4 * i + 2], w = points[4 * i + 3];
    out[i] = x * x + y * y + z * z + w * w;
}
