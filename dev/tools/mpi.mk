# Where MPI is, which only --init mpi needs: as its compiler wrapper says (Open MPI, MPICH), else pkg-config.
# USE_MPI=0 leaves it out, USE_MPI=1 insists; by default it is used where it is found.

MPI_COMPILE := $(shell mpicc --showme:compile 2>/dev/null || mpicc -compile_info 2>/dev/null || \
    pkg-config --cflags mpi-c 2>/dev/null || pkg-config --cflags mpich 2>/dev/null)
MPI_LINK := $(shell mpicc --showme:link 2>/dev/null || mpicc -link_info 2>/dev/null || \
    pkg-config --libs mpi-c 2>/dev/null || pkg-config --libs mpich 2>/dev/null)
# as system headers, so that our warnings do not judge them
MPI_INCLUDES := $(patsubst -I%,-isystem %,$(filter -I%,$(MPI_COMPILE)))
MPI_FOUND := $(shell echo '\#include <mpi.h>' | $(CXX) $(MPI_INCLUDES) -DOMPI_SKIP_MPICXX -x c++ -E - >/dev/null 2>&1 && echo 1)

USE_MPI ?= $(if $(MPI_FOUND),1,0)
ifeq ($(filter $(USE_MPI),0 1),)
$(error USE_MPI=$(USE_MPI): expected 0 or 1)
endif
ifeq ($(USE_MPI)$(MPI_FOUND),1)
$(error USE_MPI=1, but there is no mpi.h: install libopenmpi-dev, or build with USE_MPI=0)
endif
ifeq ($(USE_MPI),1)
# the C interface alone; OMPI and MPICH each have their own name for that
MPI_FLAGS := -DUSE_MPI -DOMPI_SKIP_MPICXX -DMPICH_SKIP_MPICXX $(MPI_INCLUDES)
LIBRARIES += $(filter -L% -l% -Wl%,$(filter-out -lmpi_cxx -lmpicxx,$(MPI_LINK)))
endif

# One source depends on it; it is compiled again when the choice changes.
MPI_OBJECT = $(COMMON)/obj/llmc/parallel/startup_mpi.cpp.o
MPI_STAMP := $(COMMON)/.mpi-$(USE_MPI)
