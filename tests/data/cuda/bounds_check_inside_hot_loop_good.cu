__global__ void sums(const float* in, float* out, int n, int terms) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    float sum = 0;
    for (int k = 0; k < terms; ++k) {
        if (i + k < n) sum += in[i + k];
    }
    out[i] = sum;
}
