# Where CUDA, cuBLASLt, cuDNN and NCCL are: installed by NVIDIA's packages, by a distribution's, or by pip.

NVCC ?= $(or $(shell command -v nvcc 2>/dev/null),$(wildcard /usr/local/cuda/bin/nvcc),nvcc)
# nvcc says where it is itself: what is called so may be a script or a link to ccache
ifeq ($(origin CUDA_HOME),undefined)
HASH := \#
NVCC_TOP := $(if $(filter cuda,$(DEVICE)),$(shell $(NVCC) --dryrun -x cu /dev/null -c 2>&1 | sed -n 's/^$(HASH)$$ TOP=//p'))
CUDA_HOME := $(or $(realpath $(NVCC_TOP)),$(patsubst %/bin/nvcc,%,$(filter %/bin/nvcc,$(realpath $(NVCC)))),/usr/local/cuda)
endif
PIP_FOLDERS := $(shell python3 -c 'import site, sys; print(*site.getsitepackages(), *sys.path)' 2>/dev/null)
PIP_NVIDIA := $(firstword $(wildcard $(addsuffix /nvidia,$(PIP_FOLDERS))))

# the first of the given folders that holds the given file
first_with = $(firstword $(foreach d,$(2),$(if $(wildcard $(d)/$(1)),$(d))))
CUDA_INCLUDE := $(call first_with,cuda_runtime.h,$(CUDA_HOME)/include $(PIP_NVIDIA)/cu13/include $(PIP_NVIDIA)/cuda_runtime/include)
CUDNN_INCLUDE := $(call first_with,cudnn.h,$(CUDA_HOME)/include /usr/include /usr/include/x86_64-linux-gnu $(PIP_NVIDIA)/cudnn/include)
CUDNN_FRONTEND_INCLUDE := $(call first_with,cudnn_frontend.h,$(CUDA_INCLUDE) /usr/include $(addsuffix /include,$(PIP_FOLDERS)))
NCCL_INCLUDE := $(call first_with,nccl.h,$(CUDA_HOME)/include /usr/include $(PIP_NVIDIA)/nccl/include)
# a toolkit may be without its libraries' headers: pip's complete it, after its own
CUBLAS_INCLUDE := $(call first_with,cublasLt.h,$(CUDA_INCLUDE) /usr/include $(PIP_NVIDIA)/cu13/include $(PIP_NVIDIA)/cublas/include)
# never the compiler's own folders, which it searches anyway: named, they come first, and <cstdlib> finds no stdlib.h
without_repeats = $(if $(1),$(firstword $(1)) $(call without_repeats,$(filter-out $(firstword $(1)),$(1))))
CUDA_INCLUDES := $(addprefix -isystem ,$(filter-out /usr/include /usr/include/x86_64-linux-gnu,\
    $(call without_repeats,$(CUDA_INCLUDE) $(CUBLAS_INCLUDE) $(CUDNN_INCLUDE) $(CUDNN_FRONTEND_INCLUDE) $(NCCL_INCLUDE))))

CUDA_LIB_FOLDERS := $(wildcard $(CUDA_HOME)/lib64 $(CUDA_HOME)/lib $(PIP_NVIDIA)/cu13/lib $(PIP_NVIDIA)/cuda_runtime/lib $(PIP_NVIDIA)/cublas/lib $(PIP_NVIDIA)/cudnn/lib $(PIP_NVIDIA)/nccl/lib)
# pip's packages have only the versioned names, so the linker is given files
find_library = $(firstword $(wildcard $(foreach d,$(CUDA_LIB_FOLDERS) /usr/lib/x86_64-linux-gnu,$(d)/lib$(1).so $(d)/lib$(1).so.[0-9]*)))
CUDA_LIBRARIES = $(foreach l,cudart cublasLt nccl,$(or $(call find_library,$(l)),-l$(l))) \
    $(foreach d,$(CUDA_LIB_FOLDERS),-Wl,-rpath,$(d)) -ldl -lrt

# One architecture for the GPU at hand; every supported one (and PTX for later ones) where there is none.
CUDA_CAPABILITY := $(if $(filter cuda,$(DEVICE)),$(shell nvidia-smi --query-gpu=compute_cap --format=csv,noheader 2>/dev/null | head -1 | tr -d .))
CUDA_ARCHS ?= $(or $(patsubst 100,100a,$(CUDA_CAPABILITY:90=90a)),80 90a 100a)
PTX := -gencode arch=compute_80,code=compute_80
CUDA_GENCODE = $(foreach a,$(CUDA_ARCHS),-gencode arch=compute_$(a),code=sm_$(a)) $(if $(word 2,$(CUDA_ARCHS)),$(PTX))
# A kernel that keeps more than registers hold is an error: it would run, slower, and nobody would see why. Another nvcc than
# the one for which the kernels were tuned gives out registers in another way: its spills and notes stop no build, nor do its
# warnings. PTXAS=error or warning says what spills and notes are.
TUNED_NVCC := 13.0
NVCC_RELEASE := $(if $(filter cuda,$(DEVICE)),$(shell $(NVCC) --version 2>/dev/null | sed -n 's/.*release \([0-9.]*\),.*/\1/p'))
IS_TUNED_NVCC := $(filter $(TUNED_NVCC),$(NVCC_RELEASE))
PTXAS ?= $(if $(IS_TUNED_NVCC),error,warning)
NO_SPILLS = -Xptxas --warn-on-spills $(if $(filter error,$(PTXAS)),-Xptxas --warning-as-error)
NVCC_WARNINGS = $(if $(IS_TUNED_NVCC),-Werror all-warnings) -Xcompiler -Wall,-Wextra,-Wshadow,-pthread
NVCC_NO_WARNINGS = -Xcompiler -pthread
NVCC_FLAGS = -std=c++20 -O3 -lineinfo --expt-relaxed-constexpr --threads 2 \
    $(if $(WARNINGS),$(NVCC_WARNINGS),$(NVCC_NO_WARNINGS)) $(addprefix -Xcompiler ,$(EXTRA_FLAGS)) $(NO_SPILLS)
