// Version of the program: `train_gpt --version`.
#pragma once

#include <string>

// Returns "train_gpt a0552af, cpu, bf16": the commit that it was built from, device and precision.
std::string version_text();
