__global__ void __launch_bounds__(256) window(const float* in, float* out, int n) {
    float kept[16];
    for (int k = 0; k < 16; ++k) kept[k] = in[k * n + threadIdx.x];
    float sum = 0;
    for (int k = 0; k < 16; ++k) sum += kept[k] * kept[15 - k];
    out[threadIdx.x] = sum;
}
