__global__ void mix(float* data) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    // A warp takes one arm.
    switch (threadIdx.x / 32) {
        case 0: data[i] *= 2; break;
        case 1: data[i] += 3; break;
        case 2: data[i] = -data[i]; break;
        default: data[i] = 0;
    }
}
