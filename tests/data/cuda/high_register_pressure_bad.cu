__global__ void __launch_bounds__(1024) window(const float* in, float* out, int n) {
    float kept[128];
    for (int k = 0; k < 128; ++k) kept[k] = in[k * n + threadIdx.x];
    float sum = 0;
    for (int k = 0; k < 128; ++k) sum += kept[k] * kept[127 - k];
    out[threadIdx.x] = sum;
}
