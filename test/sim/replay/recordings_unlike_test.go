package replay_test

import (
	"fmt"
	"regexp"
	"slices"
	"time"

	"github.com/homestak/homestak-gitops/sim/pve"
)

// recordedMachine is the host that was recorded, as far as it can be simulated: its
// processors, memory and disk, that it has no KVM, and what its guests ran.
func recordedMachine() pve.Config {
	return pve.Config{
		Version: "8.4", NoManager: true, Address: "10.99.0.1/24", Bridges: []string{"vmbr0"},
		CPUs: 2, Memory: 25276510208, RootDisk: 270553174016, StorageSize: 270553174016, NoKVM: true, BootTime: 8 * time.Second,
		Resolver: map[string]string{"dns1": "10.255.255.53"},
		System: pve.System{
			Release: "NAME=\"Tiny Lab Guest\"\nID=tinylab\nPRETTY_NAME=\"Tiny Lab Guest 1\"\nVERSION=\"1\"\nVERSION_ID=\"1\"\n",
			Kernel:  "6.1.0-56-cloud-amd64", KernelVersion: "#1 SMP PREEMPT_DYNAMIC Debian 6.1.192-2 (2026-11-16)",
		},
	}
}

// The reasons why values cannot be compared.
const (
	itsHardware = "processor, kernel, load and figures over time are those of the recorded machine"
	itsKey      = "keys and certificates are made by each host"
	itsQEMU     = "the recorded QEMU is newer than that of PVE 8.4"
	itsGuest    = "what the recorded guest mounts, sends and reads on its clock"
	itsInit     = "the init of the recorded container configures no network"
	itsTools    = "messages of tools that only the recorded machine lacks or forbids"
	itsArchive  = "how well a disk is packed"
	itsFilling  = "how an image is filled shows in the progress of its copy, of which the recorded page of the log shows a part"
	itsFailure  = "why this VM did not start on the recorded machine was not recorded"
	before100   = "the VM 100 that was there before was running when the status daemon looked last"
	callsApart  = "it shows guests, disks and archives of calls that were left out of the recordings"
)

// unlike are the values that cannot be compared: in which exchanges (file and number),
// which of them, and why.
var unlike = []struct{ where, what, why string }{
	{`(nodes [34]|errors-permission 22)`, `body\.data\.(cpuinfo\.(flags|mhz|model)|kversion|current-kernel\.release|loadavg\[\d\]|memory\.free|rootfs\.free|wait):`, itsHardware},
	{`nodes 11`, `body\.data\[\d+\]\.(cpu|iowait|loadavg|maxcpu|mem(total|used)|net(in|out)|root(total|used)|swap(total|used)):`, itsHardware},
	{`qemu-misc 17`, `body\.data\[\d+\]\.(cpu|disk|maxcpu|maxdisk|maxmem|mem|netin|netout|diskread|diskwrite):`, itsHardware},
	{`nodes 9`, `body\.data\.serverid:`, itsKey},
	{`nodes 14`, `body\.data\[pve-(ssl|root-ca)\.pem\]`, itsKey},
	{`nodes 10`, `body\.data\[pc-(q35|i440fx)-10\.0\]: missing`, itsQEMU},
	{`qemu-agent 3`, `body\.data\.result\[eth0\]\.statistics\.`, itsGuest},
	{`qemu-agent 7`, `body\.data\.result`, itsGuest},
	{`qemu-agent 9`, `body\.data\.result:`, itsGuest},
	{`lxc-lifecycle 6`, `body\.data\[(lo|eth0)\]\.ip-addresses: too much`, itsInit},
	{`lxc 37|lxc-lifecycle 60`, `log, last line: want "Cannot stat file`, itsTools},
	{`qemu-misc 11`, `log, first line: want "Can't exec"`, itsTools},
	{`vzdump (12|13|15)`, `body\.data(\[vmstore:backup/vzdump-qemu-110-2026_11_20-23_55_18\.vma\.zst\]|\[110\])?\.size:`, itsArchive},
	{`lxc-lifecycle 4[01]`, `body\.data\[200\]\.size:`, itsArchive},
	{`(qemu-create|qemu-template-clone) 3`, `log, last line: want "transferred`, itsFilling},
	{`vzdump (25|31)`, `log, last line: want "progress 41%`, itsFilling},
	{`qemu-create-errors 36`, `body\.data\.(cpu|mem|netin|netout|qmpstatus|status|uptime):`, itsFailure},
	{`qemu-status-stopped 3`, `body\.data\[qemu/100\]\.`, before100},
	{`storage-content 5`, `body\.data(\[vmstore:200/(base-200-disk-2|vm-200-disk-1)\.raw\]|: too much: .*base-200-disk-1\.raw)`, callsApart},
	{`errors-permission 20`, `body\.data\[qemu/110\]: missing`, callsApart},
	{`cluster (2|19|21)`, `body\.data\.allowed-tags: `, callsApart},
	{`tasks 10`, `body\.total: missing`, callsApart},
	{`cluster 17`, `body\.data(\[(204|110)\]: missing|: too much: .*ct01)`, callsApart},
	{`qemu-template-clone 11`, `body\.data\[(9000|200)\]\.`, callsApart},
	{`vzdump (12|36)`, `body\.data\[vmstore:backup/vzdump-lxc-200-`, callsApart},
	{`lxc 40`, `body\.data(\[9000\]: missing|: too much: .*full01)`, callsApart},
}

// excuses finds the reasons of differences, and says which nobody needed.
type excuses map[int]int

func (used excuses) reason(name string, i int, difference string) string {
	where := fmt.Sprintf("%s %d", name, i)
	for n, u := range unlike {
		if regexp.MustCompile("^(?:"+u.where+")$").MatchString(where) && regexp.MustCompile("^(?:"+u.what+")").MatchString(difference) {
			used[n]++
			return u.why
		}
	}
	return ""
}

func (used excuses) unneeded() []string {
	var list []string
	for n, u := range unlike {
		if used[n] == 0 {
			list = append(list, u.where+" "+u.what+": "+u.why)
		}
	}
	slices.Sort(list)
	return list
}
