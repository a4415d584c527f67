package pvesim_test

import (
	"testing"
	"testing/synctest"
)

// TestPluggingContainers: a network device that cannot be plugged into a container that
// runs is refused, and nothing of the call is kept (vmconfig_hotplug_pending in
// PVE/LXC/Config.pm, update_vm in PVE/API2/LXC/Config.pm).
func TestPluggingContainers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := likeRecorded(t)
		c.done("POST", "/nodes/father/aplinfo", form{"storage": "local", "template": debianTemplate})
		c.done("POST", "/nodes/father/lxc", form{"vmid": "200", "ostemplate": "local:vztmpl/" + debianTemplate, "rootfs": "vmstore:1", "net0": "name=eth0,bridge=vmbr0"})
		c.done("POST", ctURL("200", "/status/start"), nil)
		set := func(device, want string) step {
			return step{"PUT", ctURL("200", "/config"), form{"net1": device, "cores": "1"}, want}
		}
		before := c.object(ctURL("200", "/config"))
		c.steps(
			set("name=eth1,bridge=vmbr9", "net1: unable to hotplug net1: bridge 'vmbr9' does not exist"),
			set("name=eth0,bridge=vmbr0", "net1: unable to hotplug net1: command 'lxc-device -n 200 add veth200i1p eth0' failed: exit code 1"),
		)
		for key, value := range c.object(ctURL("200", "/config")) {
			if before[key] != value && key != "net0" {
				t.Errorf("%s was %v and is %v", key, before[key], value)
			}
		}
		c.steps(set("name=eth1,bridge=vmbr0", "OK"))
	})
}

// TestPoolsOfJobs: the pool of a backup job has to be there (PVE/API2/Backup.pm).
func TestPoolsOfJobs(t *testing.T) {
	c := likeRecorded(t)
	job := form{"schedule": "daily", "pool": "p", "id": "job-p"}
	c.steps(
		step{"POST", "/cluster/backup", job, "403 Permission check failed (pool 'p' does not exist)"},
		step{"POST", "/pools", form{"poolid": "p"}, "OK"},
		step{"POST", "/cluster/backup", job, "OK"},
		step{"PUT", "/cluster/backup/job-p", form{"pool": "q"}, "403 Permission check failed (pool 'q' does not exist)"},
	)
}
