package real_test

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

// bootDisk is the image of a disk of 1 MiB with nothing but a boot sector, whose code
// waits for the power button of ACPI and then switches the machine off. So a VM that is
// made of it runs with 32 MiB, obeys a shutdown at once and needs no download.
//
// SeaBIOS puts the registers of the power management of i440fx and q35 at port 0x600: the
// status, 0x602 what is enabled, 0x604 the control register, where 0x2000 is soft-off
// (QEMU, hw/acpi/core.c; SeaBIOS, src/fw/pciinit.c).
func bootDisk() []byte {
	code := []byte{
		0xfb,             //       sti
		0xba, 0x02, 0x06, //       mov dx, 0x602
		0xb8, 0x00, 0x01, //       mov ax, 0x100    ; power button enable
		0xef,             //       out dx, ax
		0xf4,             // wait: hlt              ; until the next tick of the timer
		0xba, 0x00, 0x06, //       mov dx, 0x600
		0xed,             //       in ax, dx
		0xf6, 0xc4, 0x01, //       test ah, 1       ; power button status
		0x74, 0xf6, //             jz wait
		0xba, 0x04, 0x06, //       mov dx, 0x604
		0xb8, 0x00, 0x20, //       mov ax, 0x2000
		0xef,       //             out dx, ax
		0xeb, 0xed, //             jmp wait
	}
	disk := make([]byte, 1<<20)
	copy(disk, code)
	disk[510], disk[511] = 0x55, 0xaa
	return disk
}

// containerTemplate is a container template that holds one program, /sbin/init, and the
// folders that PVE mounts something on.
func containerTemplate(t *testing.T) []byte {
	t.Helper()
	program := filepath.Join(t.TempDir(), "init")
	build := exec.CommandContext(t.Context(), "go", "build", "-trimpath", "-ldflags", "-s -w", "-o", program, "./testdata/init")
	build.Env = append(os.Environ(), "CGO_ENABLED=0", "GOOS=linux", "GOARCH=amd64")
	text, err := build.CombinedOutput()
	require.NoError(t, err, "%s", text)
	content, err := os.ReadFile(program)
	require.NoError(t, err)

	var packed bytes.Buffer
	zipped := gzip.NewWriter(&packed)
	w := tar.NewWriter(zipped)
	for _, dir := range []string{"./", "./dev/", "./etc/", "./mnt/", "./proc/", "./root/", "./run/", "./sbin/", "./sys/", "./tmp/", "./usr/", "./var/"} {
		require.NoError(t, w.WriteHeader(&tar.Header{Typeflag: tar.TypeDir, Name: dir, Mode: 0o755}))
	}
	add := func(name string, mode int64, content []byte) {
		require.NoError(t, w.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: name, Mode: mode, Size: int64(len(content))}))
		_, err := w.Write(content)
		require.NoError(t, err)
	}
	add("./etc/hostname", 0o644, []byte("real\n"))
	add("./etc/os-release", 0o644, []byte("ID=homestak-test\nNAME=\"homestak test\"\n"))
	add("./sbin/init", 0o755, content)
	require.NoError(t, w.Close())
	require.NoError(t, zipped.Close())
	return packed.Bytes()
}
