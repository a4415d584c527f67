package nspawn

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// The environment variables that say what guests are booted from.
const (
	cacheDir  = "HOMESTAK_GUEST_CACHE" // where it is made otherwise, and kept
	suiteName = "HOMESTAK_GUEST_SUITE" // of Debian or Ubuntu; bookworm, which Proxmox VE 8 stands on, unless set
	// A mirror that has the suite, the components to take from it, and the script of debootstrap for a
	// suite that it does not know: "http://archive.ubuntu.com/ubuntu main,universe gutsy". Unless set,
	// the mirror of Debian that this machine uses.
	mirrorName = "HOMESTAK_GUEST_MIRROR"
)

// Systemd is what a guest has at least beside the essential packages: systemd and what its
// units call. They are few, since each makes the first run slower.
const Systemd = "systemd,systemd-sysv,dbus,procps"

// Image is what an image for the cloud has beside that, as far as specs and a first boot touch it, and curl.
// debootstrap does not resolve all dependencies of python3-cryptography.
const Image = Systemd + ",openssh-server,sudo,iproute2,libpam-systemd,ifupdown,fail2ban,python3-systemd,e2fsprogs,cloud-init,python3-cffi-backend,curl"

// Rootfs is what guests are booted from: a Debian with these packages.
type Rootfs struct {
	Packages string // separated by commas
	Suite    string // of Debian; unless set what HOMESTAK_GUEST_SUITE says, else bookworm
	Ready    string // environment variable that may name a ready folder
}

// Folder gives the folder that guests are booted from. It is made once on a machine.
// Guests never write to it: each has a layer of its own above it.
func (r Rootfs) Folder(t testing.TB) string {
	t.Helper()
	if dir := os.Getenv(r.Ready); r.Ready != "" && dir != "" {
		return dir
	}
	dir, lacks, err := r.kept(t.Logf)
	if lacks != "" {
		Without(t, lacks)
	}
	require.NoError(t, err)
	return dir
}

func (r Rootfs) kept(say func(format string, args ...any)) (dir, lacks string, err error) {
	suite := r.Suite
	if suite == "" {
		suite = os.Getenv(suiteName)
	}
	if suite == "" {
		suite = "bookworm"
	}
	cache := os.Getenv(cacheDir)
	if cache == "" {
		user, err := os.UserCacheDir()
		if err != nil {
			user = "/var/cache"
		}
		cache = filepath.Join(user, "homestak-gitops", "guest")
	}
	if err := os.MkdirAll(cache, 0o755); err != nil {
		return "", "", err
	}
	unlock, err := lock(filepath.Join(cache, "lock"))
	if err != nil {
		return "", "", err
	}
	defer unlock()
	dir = filepath.Join(cache, fmt.Sprintf("debian-%s-%s-%.4x", suite, runtime.GOARCH, sha256.Sum256([]byte(r.Packages))))
	if _, err := os.Stat(dir); err == nil {
		return dir, "", nil
	}
	mirror := os.Getenv(mirrorName)
	if mirror == "" {
		mirror = mirrorOf(os.DirFS("/etc/apt"), suite)
	}
	if mirror == "" {
		return "", "no apt source of this machine leads to a Debian mirror: name a ready folder in " + r.Ready, nil
	}
	say("making %s, once on this machine", dir)
	return dir, "", debootstrap(cache, dir, suite, mirror, r.Packages)
}

// lock waits until no other process makes a folder in this cache. It ends with the process.
func lock(name string) (unlock func(), err error) {
	f, err := os.OpenFile(name, os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, err
	}
	if err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX); err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return func() { _ = f.Close() }, nil
}

// debootstrap makes the folder beside its place and moves it there when it is whole.
// What it mounts is in a namespace of its own, and so is gone with it, however it ends.
func debootstrap(cache, dir, suite, mirror, packages string) error {
	const beside = "making-"
	left, err := filepath.Glob(filepath.Join(cache, beside+"*")) // by one that was killed
	if err != nil {
		return err
	}
	for _, name := range left {
		if err := os.RemoveAll(name); err != nil {
			return err
		}
	}
	temp, err := os.MkdirTemp(cache, beside)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Minute)
	defer cancel()
	args := []string{"--variant=minbase", "--include=" + packages}
	from := strings.Fields(mirror)
	if len(from) > 1 {
		args = append(args, "--components="+from[1])
	}
	args = append(args, suite, temp, from[0])
	if len(from) > 2 {
		args = append(args, from[2])
	}
	cmd := exec.CommandContext(ctx, "debootstrap", args...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Unshareflags: syscall.CLONE_NEWNS, Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	cmd.WaitDelay = 10 * time.Second
	if text, err := cmd.CombinedOutput(); err != nil {
		lines := bytes.Split(bytes.TrimSpace(text), []byte("\n"))
		last := bytes.Join(lines[max(0, len(lines)-5):], []byte("; "))
		return errors.Join(fmt.Errorf("debootstrap: %w: %s", err, last), os.RemoveAll(temp))
	}
	// Each guest gets an id of its own, from nspawn.
	if err := os.WriteFile(filepath.Join(temp, "etc/machine-id"), nil, 0o444); err != nil {
		return err
	}
	if err := os.Chmod(temp, 0o755); err != nil { // it becomes /, and the agent is not root
		return err
	}
	return os.Rename(temp, dir)
}
