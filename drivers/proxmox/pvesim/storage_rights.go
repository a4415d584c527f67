package pvesim

// mayReadVolume checks the right to use a volume (check_volume_access in
// PVE/Storage.pm), and returns its content type.
func (c *call) mayReadVolume(vmid int, volid, want string) (content string, err error) {
	storage, name, managed := volumeID(volid)
	if !managed {
		if !c.root() {
			return "", fail("Only root can pass arbitrary filesystem paths. at /usr/share/perl5/PVE/Storage.pm line %d.", map[bool]int{false: 581, true: 651}[c.w.v9()])
		}
		return "", nil
	}
	st, err := c.w.store(storage)
	if err != nil {
		return "", err
	}
	parsed, err := st.parseName(name)
	if err != nil {
		return "", err
	}
	path := "/storage/" + storage
	switch {
	case want != "" && parsed.content != want && (want != "rootdir" || parsed.content != "images"):
		return "", fail("unable to use volume %s - content type needs to be '%s'", volid, want)
	case c.can(path, "Datastore.Allocate"):
	case parsed.content == "iso" || parsed.content == "vztmpl" || parsed.content == "import":
		err = c.needAny(path, "Datastore.AllocateSpace", "Datastore.Audit")
	case parsed.vmid != 0 && parsed.vmid == vmid:
	case parsed.content == "images" && parsed.vmid != 0:
		if err = c.need(path, "Datastore.Audit"); err == nil {
			err = c.need(vmPath(parsed.vmid), "VM.Config.Disk")
		}
	case parsed.content == "backup" && parsed.vmid != 0:
		if err = c.need(path, "Datastore.AllocateSpace"); err == nil {
			err = c.need(vmPath(parsed.vmid), "VM.Backup")
		}
	default:
		err = fail("missing privileges to access %s", volid)
	}
	return parsed.content, err
}
