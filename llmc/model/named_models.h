// Declares a property that named models (model_config) have in their published form alone.
#pragma once

#include <cstdint>
#include <string>

// Returns the vocabulary of the published model that a descriptor names; 0 for GPT-2's sizes, which have the one that
// model_config gives all, and for what is no descriptor.
std::int64_t published_vocabulary(const std::string& descriptor);
