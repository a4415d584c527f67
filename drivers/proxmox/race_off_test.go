//go:build !race

package proxmox_test

// stride: every request of the story is faulted once.
const stride = 1
