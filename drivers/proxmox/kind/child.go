package kind

// ChildRole is a role with its privileges, and the path of the access list that it is granted on.
type ChildRole struct {
	Name  Role
	Path  string
	Privs []string
	// Or are privileges of which the first set that the host knows is added: their names differ between versions.
	Or [][]string
}

// ChildRoles are the roles of the agent of a child, on its own machine. All guests on that machine are the agent's,
// so the roles are granted for all guests, storages and bridges. They exclude privileges on /; docs/permissions.md
// has the commands for those, and doctor prints them.
func ChildRoles() []ChildRole {
	return []ChildRole{
		{
			Name: RoleGuests, Path: "/vms",
			Privs: []string{
				"VM.Allocate", "VM.Audit", "VM.Backup", "VM.Clone", "VM.Config.CDROM", "VM.Config.CPU", "VM.Config.Cloudinit", "VM.Config.Disk",
				"VM.Config.HWType", "VM.Config.Memory", "VM.Config.Network", "VM.Config.Options", "VM.PowerMgmt",
			},
			Or: [][]string{{"VM.GuestAgent.Unrestricted"}, {"VM.Monitor"}},
		},
		{Name: RoleDisks, Path: "/storage", Privs: []string{"Datastore.AllocateSpace"}},
		{Name: RoleImages, Path: "/storage", Privs: []string{"Datastore.Allocate", "Datastore.AllocateTemplate", "Datastore.Audit"}},
		{Name: RoleNetwork, Path: "/sdn/zones/localnetwork", Privs: []string{"SDN.Use"}},
		{Name: RoleNode, Path: "/nodes", Privs: []string{"Sys.AccessNetwork", "Sys.Audit"}},
		{Name: RolePool, Path: "/pool", Privs: []string{"Pool.Allocate", "Pool.Audit"}},
	}
}
