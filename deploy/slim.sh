#!/bin/sh
# Takes out of an installation what a run never reads: slim.sh FOLDER, within the build of the image. Headers and object files of
# Stan serve the compiler only (its programs are built before); stanc stays, for it checks programs.
set -eu
rm -f "$1"/bin/pip*
cd "$1"/lib/python3*/site-packages
rm -rf pip pip-*.dist-info setuptools setuptools-*.dist-info pkg_resources _distutils_hack distutils-precedence.pth
version=httpstan/include/stan/version.hpp
cp "$version" /tmp/version.hpp && rm -rf httpstan/include httpstan/*.o httpstan/lib/*.a
mkdir -p "$(dirname "$version")" && mv /tmp/version.hpp "$version"
rm -rf pyarrow/include pyarrow/src pyarrow/libarrow_flight* pyarrow/libarrow_python_flight* pyarrow/_flight* \
  matplotlib/mpl-data/sample_data numpy/_core/include/numpy/random numpy/f2py/tests
find . -depth -type d \( -name tests -o -name __pycache__ \) -not -path './numpy/*testing*' -exec rm -rf {} +
# the sources of dpdist's Stan programs stay: a built program is known by their checksums
find . -type f -not -path './dpdist/*' \
  \( -name '*.pyx' -o -name '*.pxd' -o -name '*.a' -o -name '*.c' -o -name '*.cpp' -o -name '*.pyi' \) -delete
# symbols that only a debugger reads. Programs of Stan are left alone: their checksums stand beside them. So are libraries whose paths
# were rewritten when their wheel was made: strip breaks them.
find . -type f \( -name '*.so' -o -name '*.so.*' \) -not -path '*.libs/*' -exec strip --strip-unneeded {} + 2>/dev/null || true
