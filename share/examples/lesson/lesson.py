# The same loop with Accelerate, to read side by side with accelerated.cpp.
import torch
from accelerate import Accelerator


class Waves(torch.utils.data.Dataset):
    def __len__(self):
        return 64

    def __getitem__(self, i):
        wave = torch.sin(torch.arange(17, dtype=torch.float32) * 0.3 + 0.1 * i)
        return wave[:16], wave[16:]


def main():
    accelerator = Accelerator()
    torch.manual_seed(7)
    module = torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.Tanh(), torch.nn.Linear(32, 1))
    torch_optimizer = torch.optim.AdamW(module.parameters(), lr=1e-2)
    torch_schedule = torch.optim.lr_scheduler.StepLR(torch_optimizer, 10, 0.5)
    data = torch.utils.data.DataLoader(Waves(), batch_size=8)
    model, optimizer, schedule, loader = accelerator.prepare(
        module, torch_optimizer, torch_schedule, data)

    for epoch in range(4):
        loss_of_last = 0
        for inputs, targets in loader:
            loss = torch.nn.functional.mse_loss(model(inputs), targets)
            accelerator.backward(loss)
            optimizer.step()
            schedule.step()
            optimizer.zero_grad()
            loss_of_last = accelerator.reduce(loss.detach(), "mean").item()
        if accelerator.is_main_process:
            print(f"epoch {epoch} loss {loss_of_last:.6f}")


main()
