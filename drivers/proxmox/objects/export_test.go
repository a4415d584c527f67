package objects

// IPSet is for the tests from outside, which import proxmoxtest.
type IPSet = ipSet
