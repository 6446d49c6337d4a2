# What is used where it is found: MPI (only --init mpi needs it), PCRE2 (tokenizers with a pattern of their own, and the
# oracle of the known ones in tests), ICU (tokenizers that normalise text, as Qwen's do), zlib and zstd (tokenize reads
# .gz and .zst), cuDNN with cudnn-frontend (library attention on a GPU). Found means that a use of it compiles and links;
# that is tried anew when compiler, packages or flags have changed (dev/tools/found.sh), and not for help and clean.
# USE_MPI=0 leaves MPI out, USE_MPI=1 insists on it; USE_PCRE2, USE_ICU, USE_ZLIB, USE_ZSTD and USE_CUDNN likewise.

# MPI's flags, as its compiler wrapper says (Open MPI, MPICH), else pkg-config. The C interface alone: Open MPI and MPICH
# each have a name of their own for that. As system headers, so that our warnings do not judge them.
MPI_COMPILE := $(shell mpicc --showme:compile 2>/dev/null || mpicc -compile_info 2>/dev/null || \
    pkg-config --cflags mpi-c 2>/dev/null || pkg-config --cflags mpich 2>/dev/null)
MPI_LINK := $(shell mpicc --showme:link 2>/dev/null || mpicc -link_info 2>/dev/null || \
    pkg-config --libs mpi-c 2>/dev/null || pkg-config --libs mpich 2>/dev/null)
MPI_FLAGS := -DUSE_MPI -DOMPI_SKIP_MPICXX -DMPICH_SKIP_MPICXX $(patsubst -I%,-isystem %,$(filter -I%,$(MPI_COMPILE)))
MPI_LIBRARIES := $(filter -L% -l% -Wl%,$(filter-out -lmpi_cxx -lmpicxx,$(MPI_LINK)))
MPI_PACKAGE := libopenmpi-dev
MPI_HEADER := mpi.h
MPI_USE := MPI_Finalize()

PCRE2_FLAGS := -DUSE_PCRE2 -DPCRE2_CODE_UNIT_WIDTH=8
PCRE2_LIBRARIES := -lpcre2-8
PCRE2_PACKAGE := libpcre2-dev
PCRE2_HEADER := pcre2.h
PCRE2_USE := pcre2_code_free(nullptr)

ICU_FLAGS := -DUSE_ICU
ICU_LIBRARIES := -licuuc
ICU_PACKAGE := libicu-dev
ICU_HEADER := unicode/normalizer2.h
ICU_USE := UErrorCode problem = U_ZERO_ERROR; icu::Normalizer2::getNFCInstance(problem)

ZLIB_FLAGS := -DUSE_ZLIB
ZLIB_LIBRARIES := -lz
ZLIB_PACKAGE := zlib1g-dev
ZLIB_HEADER := zlib.h
ZLIB_USE := zlibVersion()

ZSTD_FLAGS := -DUSE_ZSTD
ZSTD_LIBRARIES := -lzstd
ZSTD_PACKAGE := libzstd-dev
ZSTD_HEADER := zstd.h
ZSTD_USE := ZSTD_versionNumber()

# libraries are opened when they are asked for, so headers are enough: cuDNN's, and those of the frontend to it
CUDNN_FLAGS := -DUSE_CUDNN -DNV_CUDNN_FRONTEND_USE_DYNAMIC_LOADING -DCUDNN_FRONTEND_SKIP_JSON_LIB
CUDNN_LIBRARIES :=
CUDNN_PACKAGE := cuDNN 9 or later (NVIDIA's cudnn9-cuda-13, or pip's nvidia-cudnn-cu13) and cudnn-frontend 1.20 or later \
    (pip install --no-deps nvidia-cudnn-frontend, or its headers in third_party/include)
CUDNN_HEADER := cudnn.h
CUDNN_USE := static_assert(CUDNN_VERSION >= 90000 && CUDNN_FRONTEND_VERSION >= 12000)
CUDNN_TRIED_WITH := -include cudnn_frontend_version.h $(INCLUDES) $(CUDA_INCLUDES)

OPTIONAL := MPI PCRE2 ICU ZLIB ZSTD CUDNN
FOUND := $(shell CXX='$(CXX)' dev/tools/found.sh $(COMMON)/.found $(foreach p,$(filter-out $(if $(filter cpu,$(DEVICE)),CUDNN),$(OPTIONAL)),\
    $(p) '$($(p)_HEADER)' '$($(p)_USE)' '$($(p)_FLAGS) $($(p)_LIBRARIES) $($(p)_TRIED_WITH)'))
$(foreach p,$(OPTIONAL),$(eval $(p)_FOUND := $(if $(filter $(p),$(FOUND)),1,0)))
USE_MPI ?= $(MPI_FOUND)
USE_PCRE2 ?= $(PCRE2_FOUND)
USE_ICU ?= $(ICU_FOUND)
USE_ZLIB ?= $(ZLIB_FOUND)
USE_ZSTD ?= $(ZSTD_FOUND)
USE_CUDNN ?= $(CUDNN_FOUND)
$(foreach p,$(OPTIONAL),$(if $(filter 0 1,$(USE_$(p))),,$(error USE_$(p)=$(USE_$(p)): expected 0 or 1)))
$(foreach p,$(OPTIONAL),$(if $(filter 1:0,$(USE_$(p)):$($(p)_FOUND)),\
    $(error USE_$(p)=1, but nothing that uses it builds here: install $($(p)_PACKAGE), or build with USE_$(p)=0)))
USED := $(foreach p,$(OPTIONAL),$(if $(filter 1,$(USE_$(p))),$(p)))
OPTIONAL_FLAGS := $(foreach p,$(USED),$($(p)_FLAGS))
LIBRARIES += $(foreach p,$(USED),$($(p)_LIBRARIES))

# What depends on the choice is compiled again when it changes.
OPTIONAL_STAMP := $(COMMON)/.optional$(subst $() ,,$(foreach p,$(USED),-$(p)))
OPTIONAL_SOURCES := %/startup_mpi.cpp %/split_regex.cpp %/nfc.cpp %/byte_stream.cpp %/byte_stream_test.cpp %_cudnn.cpp %_cudnn_test.cpp
$(OPTIONAL_STAMP):
	@mkdir -p $(@D) && rm -f $(COMMON)/.optional* && touch $@
