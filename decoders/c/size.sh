#!/bin/sh
# Prints what opening a LeNet-5 takes: code and tables of sws.h in a program that decodes with its adaptive codec alone
# (size.c), without and with compact files, and with all codecs. CC is the compiler; CFLAGS may select a processor: CC=arm-none-eabi-gcc
# CFLAGS="-mcpu=cortex-m4 -mthumb" sh size.sh
set -eu
cd "$(dirname "$0")"
: "${CC:=cc}" "${CFLAGS:=}"
out=$(mktemp -d)
trap 'rm -rf "$out"' EXIT
prefix=${CC%gcc}
[ "$prefix" != "$CC" ] || prefix=
few="-DSWS_WITHOUT_HAN -DSWS_WITHOUT_PLANES -DSWS_WITHOUT_FAST -DSWS_WITHOUT_STATIC"
for options in "$few -DSWS_WITHOUT_COMPACT" "$few" ""; do
  # shellcheck disable=SC2086
  $CC $CFLAGS $options -std=c99 -Os -ffreestanding -fno-stack-protector -fno-asynchronous-unwind-tables -ffunction-sections \
    -fdata-sections -DSWS_SMALL size.c -nostdlib -Wl,--gc-sections,-e,open_model,--build-id=none -o "$out/size" -lgcc
  "${prefix}size" "$out/size" | awk -v what="${options:-all codecs}" 'NR == 2 { print $1 " bytes of flash: " what }'
done
