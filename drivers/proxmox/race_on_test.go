//go:build race

package proxmox_test

// stride: the race detector makes the fault sweep ten times as slow and is after
// other things, so it takes a few places only.
const stride = 41
