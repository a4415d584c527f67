package guests

import (
	"github.com/homestak/homestak-gitops/drivers/proxmox/pvesim/core"
	"github.com/homestak/homestak-gitops/drivers/proxmox/pvesim/perl"
)

// MayReadVolume checks the right to use a volume (check_volume_access in
// PVE/Storage.pm), and returns its content type.
func MayReadVolume(c *core.Call, vmid int, volid, want string) (content string, err error) {
	storage, name, managed := core.VolumeID(volid)
	if !managed {
		if !c.Root() {
			return "", perl.Fail("Only root can pass arbitrary filesystem paths. at /usr/share/perl5/PVE/Storage.pm line %d.", map[bool]int{false: 581, true: 651}[c.W.V9()])
		}
		return "", nil
	}
	st, err := c.W.Store(storage)
	if err != nil {
		return "", err
	}
	parsed, err := st.ParseName(name)
	if err != nil {
		return "", err
	}
	path := "/storage/" + storage
	switch {
	case want != "" && parsed.Content != want && (want != "rootdir" || parsed.Content != "images"):
		return "", perl.Fail("unable to use volume %s - content type needs to be '%s'", volid, want)
	case c.Can(path, "Datastore.Allocate"):
	case parsed.Content == "iso" || parsed.Content == "vztmpl" || parsed.Content == "import":
		err = c.NeedAny(path, "Datastore.AllocateSpace", "Datastore.Audit")
	case parsed.Vmid != 0 && parsed.Vmid == vmid:
	case parsed.Content == "images" && parsed.Vmid != 0:
		if err = c.Need(path, "Datastore.Audit"); err == nil {
			err = c.Need(core.VMPath(parsed.Vmid), "VM.Config.Disk")
		}
	case parsed.Content == "backup" && parsed.Vmid != 0:
		if err = c.Need(path, "Datastore.AllocateSpace"); err == nil {
			err = c.Need(core.VMPath(parsed.Vmid), "VM.Backup")
		}
	default:
		err = perl.Fail("missing privileges to access %s", volid)
	}
	return parsed.Content, err
}
