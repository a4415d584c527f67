package pve_test

import (
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/luthermonson/go-proxmox"
	"github.com/stretchr/testify/require"

	"github.com/homestak/homestak-gitops/sim/pve"
	"github.com/homestak/homestak-gitops/sim/pve/simtest"
)

// TestLibrary: the typed calls of go-proxmox, with a token and with a password,
// work against a host over TLS.
func TestLibrary(t *testing.T) {
	synctest.Test(t, func(t *testing.T) { // The library polls by the second.
		h := pve.New(pve.Config{Guests: 3, Password: "secret"})
		transport := simtest.Pipe(t, h)
		id, secret, _ := strings.Cut(h.Token(), "=")
		c := &client{t: t, h: h, token: h.Token()}
		c.done("POST", "/nodes/father/aplinfo", form{"storage": "local", "template": debianTemplate})
		logins := map[int]proxmox.Option{ // By the id of the VM that is made with it.
			500: proxmox.WithAPIToken(id, secret),
			600: proxmox.WithCredentials(&proxmox.Credentials{Username: "root@pam", Password: "secret"}),
		}
		for vmid, option := range logins {
			client := proxmox.NewClient("https://pve/api2/json", proxmox.WithHTTPClient(&http.Client{Transport: transport}), option)
			libraryStory(t, client, vmid)
			libraryContainer(t, client, vmid+10)
		}
		require.Empty(t, h.Snapshot().Unimplemented)
		require.Len(t, h.Snapshot().Guests, 3)
	})
}

// libraryStory is the life of a VM by typed calls.
func libraryStory(t *testing.T, c *proxmox.Client, id int) {
	t.Helper()
	ctx, name := t.Context(), strconv.Itoa(id)
	version, err := c.Version(ctx)
	require.NoError(t, err)
	require.Equal(t, "9.2", version.Release)

	nodes, err := c.Nodes(ctx)
	require.NoError(t, err)
	require.Len(t, nodes, 1)
	node, err := c.Node(ctx, "father")
	require.NoError(t, err)
	require.Equal(t, 64, node.CPUInfo.CPUs)

	storage, err := node.Storage(ctx, "local")
	require.NoError(t, err)
	finish(t, "download")(storage.DownloadURL(ctx, "import", name+".qcow2", "https://images.test/debian.qcow2"))

	cluster, err := c.Cluster(ctx)
	require.NoError(t, err)
	next, err := cluster.NextID(ctx)
	require.NoError(t, err)
	require.NotZero(t, next)
	finish(t, "create")(node.NewVirtualMachine(ctx, id,
		proxmox.VirtualMachineOption{Name: "name", Value: "lib"},
		proxmox.VirtualMachineOption{Name: "memory", Value: 1024},
		proxmox.VirtualMachineOption{Name: "agent", Value: "1"},
		proxmox.VirtualMachineOption{Name: "net0", Value: "virtio,bridge=vmbr0"},
		proxmox.VirtualMachineOption{Name: "scsi0", Value: "local-lvm:0,import-from=local:import/" + name + ".qcow2"},
		proxmox.VirtualMachineOption{Name: "ide2", Value: "local-lvm:cloudinit"}))

	vm, err := node.VirtualMachine(ctx, id)
	require.NoError(t, err)
	require.Equal(t, "lib", vm.Name)
	require.NotEmpty(t, vm.VirtualMachineConfig.Digest)
	require.Contains(t, vm.VirtualMachineConfig.Nets["net0"], "virtio=BC:24:11:")
	finish(t, "config")(vm.Config(ctx, proxmox.VirtualMachineOption{Name: "cores", Value: 2}))
	finish(t, "resize")(vm.ResizeDisk(ctx, "scsi0", "10G"))
	finish(t, "start")(vm.Start(ctx))
	require.NoError(t, vm.WaitForAgent(ctx, 20))
	interfaces, err := vm.AgentGetNetworkIFaces(ctx)
	require.NoError(t, err)
	require.Len(t, interfaces, 1, "the library leaves out the loopback")
	pid, err := vm.AgentExec(ctx, []string{"cat", "/etc/hostname"}, "")
	require.NoError(t, err)
	run, err := vm.WaitForAgentExecExit(ctx, pid, 5)
	require.NoError(t, err)
	require.Equal(t, "lib\n", run.OutData)
	finish(t, "shutdown")(vm.Shutdown(ctx))

	newID, task, err := vm.Clone(ctx, &proxmox.VirtualMachineCloneOptions{NewID: id + 1000, Name: "copy", Full: true})
	finish(t, "clone")(task, err)
	copied, err := node.VirtualMachine(ctx, newID)
	require.NoError(t, err)
	require.Equal(t, "copy", copied.Name)
	for _, gone := range []*proxmox.VirtualMachine{copied, vm} {
		finish(t, "delete")(gone.Delete(ctx, nil))
	}
	_, err = node.VirtualMachine(ctx, id)
	require.ErrorContains(t, err, "does not exist")
}

// finish returns a function that waits for a task and fails unless it succeeds.
func finish(t *testing.T, what string) func(*proxmox.Task, error) {
	t.Helper()
	return func(task *proxmox.Task, err error) {
		t.Helper()
		require.NoError(t, err, what)
		require.NotNil(t, task, what)
		require.NoError(t, task.Wait(t.Context(), 10*time.Millisecond, 20*time.Second), what)
		require.True(t, task.IsSuccessful, "%s: %s", what, task.ExitStatus)
	}
}

// libraryContainer is the life of a container by typed calls, with the firewall, the
// HA manager and snapshots beside it.
func libraryContainer(t *testing.T, c *proxmox.Client, id int) {
	t.Helper()
	ctx := t.Context()
	node, err := c.Node(ctx, "father")
	require.NoError(t, err)
	finish(t, "create")(node.NewContainer(ctx, id,
		proxmox.ContainerOption{Name: "ostemplate", Value: "local:vztmpl/" + debianTemplate},
		proxmox.ContainerOption{Name: "hostname", Value: "lib"},
		proxmox.ContainerOption{Name: "rootfs", Value: "local-lvm:1"},
		proxmox.ContainerOption{Name: "unprivileged", Value: 1},
		proxmox.ContainerOption{Name: "net0", Value: "name=eth0,bridge=vmbr0,ip=dhcp"}))
	ct, err := node.Container(ctx, id)
	require.NoError(t, err)
	require.Equal(t, "lib", ct.Name)
	finish(t, "start")(ct.Start(ctx))
	interfaces, err := ct.Interfaces(ctx)
	require.NoError(t, err)
	require.Len(t, interfaces, 2)
	finish(t, "snapshot")(ct.NewSnapshot(ctx, "one"))
	snapshots, err := ct.Snapshots(ctx)
	require.NoError(t, err)
	require.Len(t, snapshots, 2)
	finish(t, "resize")(ct.Resize(ctx, "rootfs", "+1G"))
	finish(t, "stop")(ct.Stop(ctx))
	copyID, task, err := ct.Clone(ctx, &proxmox.ContainerCloneOptions{NewID: id + 1, Hostname: "copy"})
	finish(t, "clone")(task, err)
	copied, err := node.Container(ctx, copyID)
	require.NoError(t, err)

	cluster, err := c.Cluster(ctx)
	require.NoError(t, err)
	require.NoError(t, cluster.NewHAResource(ctx, &proxmox.HAResourceCreateOption{SID: fmt.Sprint("ct:", copyID), State: new("stopped")}))
	managed, err := cluster.HAResources(ctx, "ct")
	require.NoError(t, err)
	require.Len(t, managed, 1)
	require.NoError(t, cluster.HAResourceDelete(ctx, managed[0].SID, false))
	for _, gone := range []*proxmox.Container{copied, ct} {
		finish(t, "delete")(gone.Delete(ctx, nil))
	}
}
